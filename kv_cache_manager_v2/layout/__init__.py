"""Pure arithmetic: life cycles, where each buffer lies in a slot, page indices, how many slots a quota holds."""
