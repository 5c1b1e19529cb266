"""The lease: how it is granted, kept alive, lost, released, or taken from a dead holder.

Two undisturbed holders never overlap, and a holder that cannot prove its right is the first to distrust itself.
"""
