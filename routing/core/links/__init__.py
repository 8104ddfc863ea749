"""What a link is now, and what plans may use of it."""
