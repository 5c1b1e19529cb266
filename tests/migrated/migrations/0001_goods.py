from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(name="Good", fields=[("id", models.BigAutoField(primary_key=True))]),
    ]
