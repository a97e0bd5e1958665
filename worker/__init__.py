"""Engine, puller and supervisor of one node. Importing this package imports nothing."""
