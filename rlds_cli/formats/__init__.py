"""Files that archives come in, read safely; nothing here knows of reinforcement learning."""
