"""Recipes: gather, judge, gather again where the judgement asks for it, report."""
