"""What traffic the next hours will bring by the week's pattern, what roles that asks for, and how
often such advice was right. Pure."""
