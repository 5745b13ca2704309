#!/usr/bin/env bash
# Continue the study `lineage` from the results in docs/results/lineage.tar.xz, on a machine with a GPU.
#
#   benchmarks/lineage.sh run FOLDER [OPTION …]    prepare FOLDER/corpus and continue the study in FOLDER/st
#   benchmarks/lineage.sh pack FOLDER FILE         pack the results so far (.tar.xz), without models and corpora
#
# FOLDER has the files of text in `text`, without the held-out one, and the data sets in `data`. Each OPTION is one of
# `polyseme study`, such as --time-limit 20m. The jobs share the GPU by NVIDIA's Multi-Process Service, where it starts.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
command=$1 folder=$(cd "$2" && pwd)
shift 2
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
case $command in
run)
    cd "$folder"
    if [ ! -d st ]; then
        rm -rf st.partial
        mkdir st.partial
        tar xJf "$root/docs/results/lineage.tar.xz" -C st.partial
        mv st.partial st
    fi
    [ -f corpus/manifest.json ] || python -m polyseme prepare text --tokenizer "$root/src/polyseme/models/mini" --out corpus
    nvidia-cuda-mps-control -d || echo "without the Multi-Process Service, jobs take turns on the GPU" >&2
    # the learning rates were searched for 5 s each
    exec python -m polyseme study lineage --corpus corpus --data data --budget 90s --search-fraction 0.05555555555555555 \
        --seeds 3 --out st/lineage --jobs 10 "$@"
    ;;
pack)
    file=$(realpath "$1")
    sed -i "s|\"$folder/|\"|" "$folder/st/lineage/study.json"  # paths within the folder, as the jobs read them
    tar cJf "$file.partial" -C "$folder/st" --owner=0 --group=0 \
        --exclude='lineage/corpora' --exclude='lineage/cache' --exclude='lineage/logs' --exclude='lineage/arms/*/*/*' lineage
    mv "$file.partial" "$file"
    ;;
*)
    echo "error: unknown command $command: expected run or pack" >&2
    exit 2
    ;;
esac
