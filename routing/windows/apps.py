from django.apps import AppConfig


class WindowsConfig(AppConfig):
    name = "routing.windows"
    label = "windows"
    default_auto_field = "django.db.models.BigAutoField"
