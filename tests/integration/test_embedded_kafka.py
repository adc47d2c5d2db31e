async def test_x(bootstrap):
    print(bootstrap)
