"""Tests of the devices and of their parts."""
