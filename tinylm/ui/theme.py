"""Colours and type of the page. System fonts only, so that no request leaves the server's host."""

from __future__ import annotations

import gradio as gr

SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
MONO = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "monospace"]


def theme() -> gr.themes.Base:
    """A quiet theme in teal and slate, light and dark."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=SANS,
        font_mono=MONO,
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        block_title_text_color="*neutral_800",
        block_title_text_color_dark="*neutral_200",
        block_border_width="1px",
        button_large_text_size="*text_md",
        button_large_text_weight="600",
        input_border_width="1px",
        input_border_color="*neutral_300",
        input_border_color_dark="*neutral_700",
        block_shadow="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_label_border_width="0px",
        block_title_text_weight="600",
        block_title_text_size="*text_sm",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="white",
        input_background_fill="white",
        input_background_fill_dark="*neutral_900",
        slider_color="*primary_600",
        slider_color_dark="*primary_500",
    )
