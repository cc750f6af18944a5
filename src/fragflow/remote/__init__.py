"""The same workers in processes of their own: their jobs, and the transport of values."""
