from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_singlejob", "0007_unrecorded"),
    ]

    operations = [
        migrations.AddField(
            model_name="jobstatus",
            name="hold_count",
            field=models.PositiveBigIntegerField(
                default=0,
                help_text="How often a holder has kept everybody else from passing.",
                verbose_name="holds",
            ),
        ),
        migrations.AlterField(
            model_name="jobstatus",
            name="fence",
            field=models.BigIntegerField(default=0, help_text="Grows with each grant.", verbose_name="fence"),
        ),
    ]
