"""Make the reference's pages from the declarations of components."""
