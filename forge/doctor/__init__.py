"""What a machine has, lacks, or has set up badly; stands on the standard library alone, so that
nothing broken takes it down.
"""
