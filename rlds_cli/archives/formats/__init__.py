"""Readers of the file formats of archives, safe on untrusted files. They know nothing of reinforcement learning."""
