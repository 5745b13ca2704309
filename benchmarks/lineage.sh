#!/usr/bin/env bash
# Continue the study `lineage` from the results in docs/results/lineage.tar.xz, on a machine with a GPU.
#
#   benchmarks/lineage.sh run FOLDER [OPTION …]    prepare FOLDER/corpus and continue the study in FOLDER/st
#   benchmarks/lineage.sh pack FOLDER FILE         pack the results so far (.tar.xz), without models and corpora
#   benchmarks/lineage.sh watch FOLDER FILE SECONDS    pack them every minute, until the study ends or the time is over
#
# FOLDER has the files of text in `text`, without the held-out one, and the data sets in `data`. Each OPTION is one of
# `polyseme study`, such as --time-limit 20m. Three of the jobs train at a time, and the others measure
# what is trained. They share the GPU by NVIDIA's Multi-Process Service, where it exists.
set -euo pipefail
usage() { sed -n '4,6s/^# *//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] && [ -d "$2" ] || usage
root=$(cd "$(dirname "$0")/.." && pwd)
command=$1 folder=$(cd "$2" && pwd)
shift 2

# pack FILE: write the results so far
pack() {
    local file
    file=$(realpath "$1")
    sed -i "s|\"$folder/|\"|" "$folder/st/lineage/study.json"  # paths within the folder, as the jobs read them
    tar cJf "$file.partial" -C "$folder/st" --owner=0 --group=0 --warning=no-file-changed --warning=no-file-removed \
        --exclude='lineage/corpora' --exclude='lineage/cache' --exclude='lineage/logs' --exclude='lineage/arms/*/*/*' lineage ||
        [ $? = 1 ]  # a file changed meanwhile
    mv "$file.partial" "$file"
}

export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
case $command in
run)
    cd "$folder"
    echo $$ > run.pid
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
        --seeds 3 --out st/lineage --jobs 11 "$@"
    ;;
pack)
    pack "${1:?}"
    ;;
watch)
    end=$((SECONDS + ${2:?}))
    while [ $SECONDS -lt $end ]; do
        for ((i = 0; i < 60 && SECONDS < end; i++)); do sleep 1; done
        [ ! -f "$folder/st/lineage/study.json" ] || pack "${1:?}"
        kill -0 "$(cat "$folder/run.pid")" 2> /dev/null || break
    done
    tail -n 3 "$folder"/st/lineage/logs/*.log 2> /dev/null | tail -n 60 || true
    ;;
*) usage ;;
esac
