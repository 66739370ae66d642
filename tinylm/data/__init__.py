"""What the models learn from: lines of text, pictures of flowers, and batches of both."""
