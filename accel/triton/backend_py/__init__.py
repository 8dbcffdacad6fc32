"""The Python-backend model that serves any accel session; ``model.py`` runs inside the server only."""
