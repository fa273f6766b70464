"""Tests of watching runs."""
