"""Two result streams become one. Pure logic on stamps and a steady clock."""
