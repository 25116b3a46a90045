"""What a run will cost, said before it starts: jobs, hours, disk, downloads, and how sure each number is.

`jobs` asks Snakemake what there is to do, `work` and its parts say how long each job takes, `disk` what it leaves and
fetches, `schedule` when it ends, and `report` puts it into words. Nothing here imports torch.
"""
