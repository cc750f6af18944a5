"""The same workers in processes of their own: what they are told, and how values travel."""
