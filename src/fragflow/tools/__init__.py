"""The tools that people use: the command line, run directories, `ff.train` and `ff.load`."""
