import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_singlejob", "0004_admin"),
    ]

    operations = [
        migrations.AddField(
            model_name="joblock",
            name="sent_at",
            field=models.DateTimeField(
                default=django.utils.timezone.now,
                help_text="By the holder's clock; the other times are by the database's.",
                verbose_name="last heartbeat sent at",
            ),
            preserve_default=False,
        ),
    ]
