"""Steps of datasets in memory or in files, read at any rows, and the items that are cut from them."""
