"""The same readings over time: one supervised child asks, in tiers; a ring buffer keeps them."""
