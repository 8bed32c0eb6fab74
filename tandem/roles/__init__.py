"""Small models beside the big one: each a process of its own, loaded while memory allows. None is ever waited for
longer than its caller said, and no text of the big model depends on any of them."""
