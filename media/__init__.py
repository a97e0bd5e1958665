"""Pictures, clips and sound: encode, probe, read back."""
