"""What `--hydra-help` prints."""

TEXT = """\
Words of Hydra's applications, and what they do here.

flags
  -m, --multirun                     a sweep; hydra/sweeper is sweeper, hydra/launcher is launch
  -c, --cfg job|hydra|all            print the config instead of running it
  -p, --package SECTION              with --cfg: only this section
  --resolve                          with --cfg: with the values that ${...} refer to
  -cd, --config-dir DIR              also take groups and options from DIR (-cp, --config-path too)
  -cn, --config-name NAME            NAME.yaml of DIR in place of conf/config.yaml
  -i, --info defaults|searchpath|... what Hydra says of the composition
  -sc install=bash|zsh|fish          completion; the same as forge completion bash
  -h, --help [GROUP]                 groups, options and flags; what a group offers

overrides
  key=value +key=value ++key=value ~key group=option +group@package=option
  a=1,2 a=range(1,5) a=glob(*) a=choice(1,2)   with -m
  hydra.searchpath=[DIR,pkg://package.conf]    folders of groups
  hydra/launcher=submitit_slurm hydra.launcher.timeout_min=60 ...   launch=slurm launch.time=60
  in place of hydra.run.dir, hydra.sweep.dir and hydra.job.name: run.dir, sweep.root and run.name

interpolations, in files and in values
  ${key} ${oc.env:NAME} ${now:%Y-%m-%d} ${hydra:runtime.cwd} ${hydra:runtime.choices.model}
  ${hydra:job.override_dirname} ${hydra:job.config_name} ${hydra:overrides.task}"""
