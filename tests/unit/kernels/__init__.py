"""Page tables and the kernel that converts page indices."""
