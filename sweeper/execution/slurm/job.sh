#!/bin/bash
# {{ today }}, by `sweeper cluster submit --slurm`; `sweeper resume --slurm` submits it again.
#SBATCH --job-name={{ name }}
#SBATCH --output={{ quote(logs ~ ("%A_%a.log" if shape == "array" else "%j.log")) }}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{{ site.warning }}
{% for option in ("partition", "account", "qos", "time", "constraint") if asked[option] is not none %}
#SBATCH --{{ option }}={{ asked[option] }}
{% endfor %}
{% if asked.memory is not none %}
#SBATCH --mem={{ asked.memory }}
{% endif %}
{% for option in asked.sbatch %}
#SBATCH {{ option }}
{% endfor %}
{% if shape == "nodes" %}
#SBATCH --nodes={{ site.nodes }}
#SBATCH --ntasks-per-node=1
{% elif shape == "array" %}
#SBATCH --array=0-{{ site.workers - 1 }}
#SBATCH --ntasks=1
{% else %}
#SBATCH --ntasks=1
{% endif %}
#SBATCH --cpus-per-task={{ asked.cpus }}
{% if shape != "head" and site.gpus %}
#SBATCH --gres=gpu:{{ site.gpu_type ~ ":" if site.gpu_type else "" }}{{ site.gpus }}
{% endif %}

{% for module in site.modules %}
module load {{ module }}
{% endfor %}
{% for line in site.setup %}
{{ line }}
{% endfor %}
{% if site.interface %}
export SWEEPER_SLURM_INTERFACE={{ quote(site.interface) }}
{% endif %}
export SWEEPER_SLURM_SCRATCH={{ site.scratch }}
{% if shape == "nodes" %}
# On each node one process trains. The first node also runs the driver.
srun --overlap --nodes={{ site.nodes }} --ntasks-per-node=1 --kill-on-bad-exit=0 {{ worker }} &
{% endif %}
exec {{ worker if shape == "array" else head }}
