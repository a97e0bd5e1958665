"""The runtime: checkpoints in, frames and waveform out. Importing this package imports nothing."""
