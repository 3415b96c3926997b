"""Running a sweep and taking it up again: the driver decides, Ray carries out, budget and peers look on."""
