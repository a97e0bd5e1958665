"""The Redis protocol: key names, connection, submission, states, progress, node cards."""
