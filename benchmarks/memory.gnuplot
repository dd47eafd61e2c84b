# SPDX-License-Identifier: MIT
# Draws memory over time with classic and expandable segments: gnuplot -e "folder='...'" memory.gnuplot
#
# Reads TRACE-classic.tsv and TRACE-expandable.tsv of `xseg replay --timeline`; writes memory.svg.
traces = "llama_finetune sd_unet resnet_multiscale"
titles = "'Llama, fine-tuning, lengths vary' 'Diffusion UNet, image sizes vary' 'ResNet-50, image and batch sizes vary'"

set terminal svg size 1200,430 dynamic font "sans-serif,14" background rgb "white"
set output folder . "/memory.svg"

set style fill solid 1.0 noborder
set border 3 lc rgb "#888888"
set tics nomirror scale 0.5 textcolor rgb "#444444"
set grid ytics lc rgb "#e4e4e4" lw 1 lt 1
set format x "%g"
set xtics 100
set yrange [0:*]
set xlabel "allocations and frees (thousands)" textcolor rgb "#444444" offset 0,0.3
GiB = 1073741824.0

# One legend for all panels, above them.
set key off
set arrow 1 from screen 0.100,0.95 to screen 0.125,0.95 nohead lw 3 lc rgb "#d1622b"
set label 1 "reserved, classic segments" at screen 0.132,0.95 left
set arrow 2 from screen 0.370,0.95 to screen 0.395,0.95 nohead lw 3 lc rgb "#1f6fb4"
set label 2 "reserved, expandable segments" at screen 0.402,0.95 left
set object 3 rectangle from screen 0.672,0.93 to screen 0.697,0.97 fc rgb "#b9c4cf" fs solid noborder
set label 3 "requested by the program" at screen 0.704,0.95 left

set multiplot
do for [i = 1:3] {
    trace = word(traces, i)
    classic = folder . "/" . trace . "-classic.tsv"
    expandable = folder . "/" . trace . "-expandable.tsv"
    left = 0.055 + (i - 1) * 0.322
    set lmargin at screen left
    set rmargin at screen left + 0.272
    set tmargin at screen 0.81
    set bmargin at screen 0.15
    set title word(titles, i) textcolor rgb "#222222" offset 0,-0.3
    if (i == 1) { set ylabel "device memory (GiB)" textcolor rgb "#444444" offset 1,0 } else { unset ylabel }
    stats expandable using 1 nooutput
    set xrange [0:STATS_max / 1000]
    # The outline keeps spikes visible that are narrower than a pixel.
    plot expandable using ($1/1000):($2/GiB) with filledcurves y1=0 lc rgb "#b9c4cf", \
         expandable using ($1/1000):($2/GiB) with lines lw 1 lc rgb "#94a3b3", \
         classic using ($1/1000):($4/GiB) with lines lw 2 lc rgb "#d1622b", \
         expandable using ($1/1000):($4/GiB) with lines lw 2 lc rgb "#1f6fb4"
    unset label
    unset arrow
    unset object
}
unset multiplot
