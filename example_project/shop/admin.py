from django.contrib import admin

from .models import Cart, Order, Product, SalesReport

admin.site.register(Product, list_display=["sku", "name", "price"], search_fields=["sku", "name"])
admin.site.register(Cart, list_display=["email", "touched_at"])
admin.site.register(Order, list_display=["id", "email", "amount", "placed_at"])
admin.site.register(SalesReport, list_display=["hour", "orders", "revenue"])
