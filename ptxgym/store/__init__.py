"""What a run leaves behind: models of its lines, and how they are written, read and judged again."""
