"""The pipeline that regenerates every table and figure of the SwiftKV paper and blog."""
