"""Answers that match a grammar: what a request asks for, made into a mask over every row of its logits.

Read `mask` for what happens at a token, `compiling` for the way there: a grammar is first tried in a process of its
own (`trial`), which a hostile one may exhaust or crash, and whose findings name the place that is wrong (`faults`).
"""
