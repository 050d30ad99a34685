"""Writers: how a program's state becomes the chunks of a checkpoint."""
