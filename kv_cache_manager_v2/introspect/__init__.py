"""The one white-box door: checks of the books from scratch, and pictures of them. Reads everything, changes nothing."""
