"""(written with the room)"""
