"""`specproof generate`: text from people's own models, decoded speculatively on MLX, and how fast that was."""
