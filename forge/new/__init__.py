"""A new project of one's own, from the files in template/."""
