from django.apps import AppConfig


class ForecastConfig(AppConfig):
    name = "routing.forecast"
    label = "forecast"
    default_auto_field = "django.db.models.BigAutoField"
