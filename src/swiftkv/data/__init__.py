"""Chats: built from sources (`build`), read and drawn for measuring (`read`)."""
