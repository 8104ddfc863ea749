"""What the next hours will bring, and which roles they will want: advice, kept and judged."""
