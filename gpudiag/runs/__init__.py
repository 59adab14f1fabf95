"""Recipes: gather, judge, gather again if the judgement asks for it, report."""
