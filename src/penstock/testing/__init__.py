"""What tests of Penstock, and of programs that use it, need around them: real servers on free ports."""
