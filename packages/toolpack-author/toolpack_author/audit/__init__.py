"""Audits tasks: can one be passed without being done, and does each of its checks measure anything?"""
