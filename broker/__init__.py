"""The Redis protocol: key names, connection, submission, progress, node cards."""
