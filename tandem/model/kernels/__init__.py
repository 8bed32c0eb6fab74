"""Triton kernels. The only folder that imports triton; nothing outside it does so unless a placement asks for kernels.

All follow one rule: how a row's sum is ordered follows from shapes that every pass shares, never from how many rows a
pass has, which sequences they belong to, or where among its rows a row stands.
"""
